"""What a budget buys on data that nobody tuned for, beside what others published."""

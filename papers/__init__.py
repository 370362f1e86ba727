"""Tables and figures of the papers, measured anew, one command each."""

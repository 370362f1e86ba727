"""How much somebody has to know for a first private federation, here and elsewhere."""

"""Tables and figures of Geyer, Klein and Nabi (2017), measured anew."""

"""`dapo report`: what training runs did, on one page."""

"""What a user's configs become: specs, validation, managed arguments, warm starts, pickles. Pure."""

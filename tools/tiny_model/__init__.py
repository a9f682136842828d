"""The tiny model that ships with the project: its text, its tokenizer, its training and its evaluation."""

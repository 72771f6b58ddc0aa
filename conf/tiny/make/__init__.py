"""How the bundled model is made: text, tokenizer, training, evaluation. Run by hand."""

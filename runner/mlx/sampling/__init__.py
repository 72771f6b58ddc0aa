"""From logits to one token a row, on the device: grammars' masks, truncation, random draws."""

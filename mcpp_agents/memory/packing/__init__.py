"""What is made of a pack's items: passages, Markdown within a token budget, and synthesis plans."""

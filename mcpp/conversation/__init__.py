"""What participants say beyond single envelopes: texts as they are written, cards, attachments."""

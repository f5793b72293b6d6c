"""Recognition of a stream: audio in, words out."""

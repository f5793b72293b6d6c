"""The worlds that the shipped models know: pictures, clips and pages of training, and questions about them."""

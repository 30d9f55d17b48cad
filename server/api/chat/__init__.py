"""Chat requests in the form to which every chat API is translated."""

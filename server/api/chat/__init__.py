"""The common form of chat requests, to which every chat API is translated."""

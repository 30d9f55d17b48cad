"""The common format of chat requests, to which the requests of every chat-like API are translated."""

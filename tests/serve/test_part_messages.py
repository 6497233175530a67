"""The messages of the model's other parts: each that answers a question is a reply of the server."""

from clearhead.serve import messages


def test_every_answer_is_a_reply():
    replies = {getattr(reply, "__name__", "") for reply in messages.REPLIES.values()}
    assert {"EmbeddingMap", "Neighbours", "Neurons", "TokenizedText"} <= replies

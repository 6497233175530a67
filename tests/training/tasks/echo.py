"""A task of the user's own that says as little as a task can, for tests of what is said for it."""

from clearhead.text.tokenizer import Tokenizer
from clearhead.training.tasks import Layout, Task


class Echo(Task):
    name = "echo"

    @staticmethod
    def layout(context):
        return Layout(texts=("text",), most=context - 1)

    @classmethod
    def default_recipe(cls, corpus, n_bytes, on_gpu):
        raise NotImplementedError

    def read(self, store, rows, random, *, filled):
        raise NotImplementedError

    def answer(self, model, texts):
        return [{"output": text} for text in texts]


def echo_task():
    return Echo(tokenizers={"text": Tokenizer.train(["abc"], "byte")}, context=8)

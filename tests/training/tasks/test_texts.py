"""The texts of a task that says nothing of them."""

from tests.training.tasks.echo import echo_task


def test_a_text_has_a_start_token_and_leaves_room_for_it():
    task = echo_task()
    assert task.fields() == ("text",)
    assert (task.reads, task.count_tokens(["abc", "a"])) == (7, [3, 1])
    assert task.frame().around([9]) == [task.tokenizer.start, 9]

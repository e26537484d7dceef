from lmpipe.runtime import Runtime
from lmpipe.runtime.micro_batch import AUTOMATIC_TOKENS, micro_batch_size


def test_a_size_that_is_asked_for_is_taken_and_an_open_one_fills_the_pass() -> None:
    assert micro_batch_size(Runtime(micro_batch_size=3), "scale", "cpu", 10**6) == 3
    assert micro_batch_size(Runtime(), "post-training", "cuda", 1024) == 32
    assert micro_batch_size(Runtime(), "evaluation", "cpu", 1000) == 4


def test_a_sequence_longer_than_the_pass_is_still_one() -> None:
    for work, tokens in AUTOMATIC_TOKENS.items():
        assert micro_batch_size(Runtime(), work, "cpu", tokens["cpu"] + 1) == 1

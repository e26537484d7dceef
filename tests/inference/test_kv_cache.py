import pytest
import torch

from lmpipe.errors import ConfigError
from lmpipe.inference.kv_cache import KVCache
from lmpipe.model.config import ModelConfig
from lmpipe.model.cost import kv_cache_bytes
from lmpipe.model.decoder import Decoder

CONFIG = ModelConfig(
    vocab_size=50, num_layers=2, d_model=32, num_heads=4, num_kv_heads=2, d_ff=64, max_seq_len=40
)
TOKENS_BT = torch.randint(0, 50, (3, 24), generator=torch.Generator().manual_seed(0))


@pytest.fixture
def model() -> Decoder:
    return Decoder(CONFIG).initialise(0).requires_grad_(False)


@pytest.mark.parametrize("chunks", [[24], [1] * 24, [7, 1, 1, 15], [23, 1]])
def test_reading_in_chunks_gives_the_logits_of_reading_at_once(
    model: Decoder, chunks: list[int]
) -> None:
    cache = KVCache(CONFIG, 3, 24)
    parts = []
    for tokens_BT in TOKENS_BT.split(chunks, dim=1):
        cache.reserve(tokens_BT.shape[1])
        parts.append(model(tokens_BT, cache=cache))
        cache.advance(tokens_BT.shape[1])
    torch.testing.assert_close(torch.cat(parts, dim=1), model(TOKENS_BT), rtol=0, atol=1e-5)


def test_what_lies_beyond_a_rows_length_is_never_seen(model: Decoder) -> None:
    length_B = torch.tensor([5, 24, 11])
    cache = KVCache(CONFIG, 3, 30)
    cache.reserve(24)
    model(TOKENS_BT, cache=cache)  # rows 0 and 2 have junk after their length
    cache.advance(length_B)
    cache.reserve(1)
    next_BV = model(TOKENS_BT[:, :1], cache=cache)[:, 0]
    for row, length in enumerate(length_B.tolist()):
        alone_1T = torch.cat(
            [TOKENS_BT[row : row + 1, :length], TOKENS_BT[row : row + 1, :1]], dim=1
        )
        torch.testing.assert_close(next_BV[row], model(alone_1T)[0, -1], rtol=0, atol=1e-5)


def test_taken_rows_go_on_as_the_rows_they_were(model: Decoder) -> None:
    cache = KVCache(CONFIG, 3, 24)
    cache.reserve(20)
    model(TOKENS_BT[:, :20], cache=cache)
    cache.advance(20)
    row_R = torch.tensor([2, 0, 2, 2])
    taken = cache.take(row_R, max_len=22)
    assert (taken.batch, taken.max_len) == (4, 22)
    for each in (cache, taken):
        each.reserve(1)
    expected_BV = model(TOKENS_BT[:, 20:21], cache=cache)
    got_RV = model(TOKENS_BT[row_R, 20:21], cache=taken)
    torch.testing.assert_close(got_RV, expected_BV[row_R], rtol=0, atol=1e-5)


def test_takes_the_bytes_that_the_accounting_says() -> None:
    cache = KVCache(CONFIG, 3, 24, dtype=torch.bfloat16)
    assert cache.key_LBGSK.nbytes + cache.value_LBGSK.nbytes == kv_cache_bytes(CONFIG, 24, 3)


def test_refuses_more_positions_than_there_are(model: Decoder) -> None:
    with pytest.raises(ConfigError, match="max_seq_len=40"):
        KVCache(CONFIG, 1, 41)
    cache = KVCache(CONFIG, 1, 8)
    cache.reserve(8)
    with pytest.raises(ConfigError, match="holds 8 tokens a row; 9"):
        cache.reserve(1)
    with pytest.raises(ConfigError, match="packed"):
        model(TOKENS_BT, document_BT=TOKENS_BT, cache=KVCache(CONFIG, 3, 24))

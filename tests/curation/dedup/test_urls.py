import pytest

from lmpipe.curation.dedup.urls import normalise_url, url_keys


@pytest.mark.parametrize(
    ("one", "two"),
    [
        ("http://www.A.example:80/p/", "https://a.example/p"),
        ("https://a.example/index.html#x", "https://a.example"),
        ("https://a.example/p?b=2&a=1&utm_medium=m&fbclid=z", "https://a.example/p?a=1&b=2"),
        (
            "https://a.example/p?SID=1&PHPSESSID=2&jsessionid=3&gclid=4&q=5",
            "https://a.example/p?q=5",
        ),
        ("https://a.example/p;jsessionid=A1B2?q=5", "https://a.example/p?q=5"),
        ("https://user:pw@a.example./p", "https://a.example/p"),
    ],
)
def test_what_does_not_change_the_page_does_not_count(one: str, two: str):
    assert normalise_url(one) == normalise_url(two)


def test_what_does_change_it_counts():
    urls = ["https://a.example/p", "https://a.example/P", "https://a.example:8080/p",
            "https://a.example/p?q=", "https://b.example/p", "http://[broken/p"]  # fmt: skip
    assert len(set(url_keys(urls).tolist())) == len(urls)
    assert url_keys([None, ""]).tolist() == [0, 0]


@pytest.mark.parametrize(
    "parameter",
    ["side", "sidx", "sidebar", "sessionids", "gclids", "fbclid_page", "ref_srcs", "mc_cidr", "utm",
     "phpsessidx", "jsessionid2"],
)  # fmt: skip
def test_a_parameter_that_only_begins_like_a_session_says_which_page_it_is(parameter: str):
    urls = [f"https://a.example/p?{parameter}={value}" for value in ("east", "west")]
    assert len({normalise_url(url) for url in urls}) == 2

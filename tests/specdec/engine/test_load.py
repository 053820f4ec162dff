"""The load is told when it has changed."""

from __future__ import annotations

from specdec.engine.load import LoadNews
from specdec.v1 import model_pb2


def test_a_load_is_news_until_it_is_told() -> None:
    load = model_pb2.Load(num_sequences=1)
    news = LoadNews(lambda: model_pb2.Load(num_sequences=load.num_sequences))
    dues = [news.is_due]
    assert news.tell() == load
    dues.append(news.is_due)
    load.num_sequences = 2
    dues.append(news.is_due)
    assert news.tell().num_sequences == 2
    dues.append(news.is_due)
    assert dues == [True, False, True, False]

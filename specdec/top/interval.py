"""What a process did between two scrapes."""

from __future__ import annotations

from collections import defaultdict

from specdec.telemetry.names import MetricName
from specdec.top.scrape import Labels, Scrape, label_of


class Interval:
    """Differences of counters and histograms. A counter that has gone back began anew: the process was restarted.

    Args:
        before: the earlier scrape.
        now: the later one, of the same process.
    """

    def __init__(self, before: Scrape, now: Scrape) -> None:
        self._before = before
        self._now = now
        self.seconds = max(now.at_seconds - before.at_seconds, 1e-9)

    def increase(self, metric: MetricName, suffix: str = "") -> float:
        """Of all series of a metric together; a series that is new began at 0."""
        return sum(self._increases(metric, suffix).values())

    def increase_by(self, metric: MetricName, attribute: str) -> dict[str, float]:
        """Of a counter, by the value of an attribute; those that did not grow are left out."""
        sums: defaultdict[str, float] = defaultdict(float)
        for labels, increase in self._increases(metric, "").items():
            if increase > 0:
                sums[label_of(labels, attribute)] += increase
        return dict(sums)

    def rate(self, metric: MetricName, suffix: str = "") -> float:
        """The increase a second."""
        return self.increase(metric, suffix) / self.seconds

    def mean(self, metric: MetricName) -> float | None:
        """Of what a histogram counted; None: nothing."""
        count = self.increase(metric, "_count")
        return self.increase(metric, "_sum") / count if count > 0 else None

    def quantile(self, metric: MetricName, share: float) -> float | None:
        """Of what a histogram counted, as Prometheus reckons it: evenly spread within a bucket. None: nothing.

        What lies above the last bound counts as that bound.
        """
        counts: defaultdict[float, float] = defaultdict(float)
        for labels, increase in self._increases(metric, "_bucket").items():
            counts[float(dict(labels)["le"])] += increase
        bounds = sorted(counts)
        total = counts[bounds[-1]] if bounds else 0.0
        if total <= 0:
            return None
        wanted = share * total
        lower, below = 0.0, 0.0
        for bound in bounds:
            if counts[bound] >= wanted:
                if bound == float("inf"):
                    return lower
                within = counts[bound] - below
                return lower + (bound - lower) * ((wanted - below) / within if within > 0 else 1.0)
            lower, below = bound, counts[bound]
        return lower

    def _increases(self, metric: MetricName, suffix: str) -> dict[Labels, float]:
        before = self._before.of(metric, suffix)
        return {
            labels: value - earlier if value >= (earlier := before.get(labels, 0.0)) else value
            for labels, value in self._now.of(metric, suffix).items()
        }

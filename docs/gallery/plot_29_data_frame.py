"""
A data frame as it comes
========================

Text, holes and all: who survives is learnt from a table with a column of text and missing numbers.
Then what each column is worth, and what it does, with errors and bands.
"""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

from qpruntime import GPClassifier
from qpruntime.plotting import ImportanceDisplay, PartialDependenceDisplay

rng = np.random.default_rng(1)
n = 260
people = pd.DataFrame(
    {
        "age": rng.uniform(1.0, 80.0, n),
        "deck": rng.choice(["lower", "middle", "upper"], n),
        "crew": rng.random(n) < 0.3,
        "ticket": rng.normal(size=n),
    }
)
by_deck = people["deck"].map({"lower": -1.0, "middle": 0.0, "upper": 1.2})
score = 1.5 - people["age"] / 30.0 + by_deck + 0.8 * rng.normal(size=n)
survived = np.where(score > 0.0, "yes", "no")
people.loc[rng.random(n) < 0.15, "age"] = np.nan

model = GPClassifier().fit(people[:180], survived[:180])
print(model.kernel_)

# %%
# What columns are worth
# ----------------------
# Log probability of the right answer that is lost where a column is permuted among rows that were
# not fitted. The ticket is noise.

figure, panel = plt.subplots(figsize=(6.0, 3.2), layout="constrained")
ImportanceDisplay.from_estimator(model, people[180:], survived[180:], random_state=0, ax=panel)
plt.show()

# %%
# What they do
# ------------
# The probability, averaged over rows, by one column's value; bands are of what is not known.

figure, panels = plt.subplots(1, 2, figsize=(9.0, 3.6), layout="constrained")
PartialDependenceDisplay.from_estimator(model, people[:180], "age", ax=panels[0])
PartialDependenceDisplay.from_estimator(model, people[:180], "deck", ax=panels[1])
plt.show()

"""
Calibration curves show whose probabilities come true
=====================================================

If a model says 0.8 for a hundred rows, about eighty of them should belong to the class. A
reliability diagram compares the two, and its intervals show how little ten rows say.

A Gaussian process, a logistic regression and a random forest learn from the same 400 rows and are
judged by 4000 others.
"""

import matplotlib.pyplot as plt
from sklearn.datasets import make_classification
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from qpruntime import GPClassifier
from qpruntime.plotting import CalibrationDisplay

X, y = make_classification(
    4400,
    n_features=6,
    n_informative=4,
    n_redundant=0,
    n_clusters_per_class=3,
    class_sep=0.8,
    flip_y=0.1,
    random_state=3,
)
X, new, y, hidden = train_test_split(X, y, train_size=400, random_state=0, stratify=y)
models = {
    "Gaussian process": (GPClassifier(random_state=0), "#0072B2", "o"),
    "logistic regression": (make_pipeline(StandardScaler(), LogisticRegression()), "#009E73", "s"),
    "random forest": (RandomForestClassifier(300, random_state=0), "#D55E00", "^"),
}

# %%
# Three models in one diagram
# ---------------------------
# Probabilities on the dotted diagonal come true. The logistic regression is wrong at both ends:
# three in ten of the rows to which it gives 0.1 belong to the class, because no plane divides these
# classes. The points of the Gaussian process are the nearest, though not all are within chance. The
# steps below are the rows behind each point.

ax = None
for name, (model, color, marker) in models.items():
    model.fit(X, y)
    display = CalibrationDisplay.from_estimator(
        model, new, hidden, name=name, ax=ax, color=color, marker=marker
    )
    ax = display.ax_
    print(f"{name:20} log loss {log_loss(hidden, model.predict_proba(new)):.3f}")
ax.set_title("400 rows learnt, 4000 judged")

# %%
# Calibration is half of it: whoever says the average of the class for every row is calibrated. The
# log loss above, smaller is better, also rewards telling rows apart.

plt.show()

# %% [markdown]
# # Tables of four hospitals
#
# 569 lumps in the breast: 30 measurements of each one's cells, and whether it was benign. The patients are real (Breast
# Cancer Wisconsin, which comes with scikit-learn); the four hospitals are not: a partition deals the patients out,
# unevenly. Four real ones are in `dataset="heart-disease"`, which Orchard downloads.

# %%
import pandas as pd
from sklearn.datasets import load_breast_cancer

import orchard

patients = load_breast_cancer(as_frame=True).frame
patients = patients.rename(columns={"target": "benign"})
patients.sample(5, random_state=0).iloc[:, [0, 1, 2, 3, -1]]

# %% [markdown]
# A data frame is a dataset: `table` says what its columns are for. With a column of hospitals it would be
# `table={"target": "benign", "site": "hospital"}`, and no partition.

# %%
federation = {
    "data": patients,
    "table": {"target": "benign"},
    "partition": {"name": "dirichlet", "alpha": 0.5},
    "clients": 4,
    "model": "logistic",
    "rounds": 20,
}

# %% [markdown]
# What is likely to go wrong? Orchard looks at the data before anything is trained:

# %%
for advice in orchard.check(**federation):
    print(advice)

# %%
methods = ("separate", "fedavg", "graft")
results = {name: orchard.run(method=name, **federation) for name in methods}

# %% [markdown]
# Where a hospital has nearly all patients of one kind, accuracy says little: look at balanced accuracy and AUROC too.

# %%
chosen = {name: result.validation_selected for name, result in results.items()}
pd.DataFrame({name: figures.measures for name, figures in chosen.items()}).T.round(3)

# %%
results["graft"]

# %% [markdown]
# Figures for a program of your own, a row for each round, hospital and moment:

# %%
results["graft"].to_pandas().iloc[:4, :6]

# %% [markdown]
# With one file for each hospital, or each hospital on its own machine, the settings stay the same: see
# [Your own data](../data.md#tables) and [Between institutions](../deploy.md).

# %% [markdown]
# # A first federation
#
# Eight silos hold handwritten digits. Half of them use another coding of the labels: what the others call 0 they call
# 3. Nobody knows that. Who should learn from whom? The digits come with Orchard, so nothing is downloaded.

# %%
import orchard

federation = {
    "dataset": "digits",
    "partition": "iid",
    "shift": "labels",
    "model": "mlp",
    "lr": 0.02,
    "epochs": 3,
    "rounds": 8,
}

# %% [markdown]
# Each silo alone; all together, as federated averaging has it, each with its own copy trained on; and `graft`, which
# finds out who works against whom. All meet the same data in the same batches.

# %%
methods = ("separate", "fedavg-local", "graft")
results = {name: orchard.run(method=name, **federation) for name in methods}

# %% [markdown]
# ## Who does best?
#
# Mean test accuracy over the silos, at the round that their validation data choose:

# %%
for name, result in results.items():
    print(f"{name:<14}{result.validation_selected.score:.1%}")

# %% [markdown]
# ## Who learns from whom?
#
# A result shows itself. In the last table each row is a silo, each column one that it may learn from.

# %%
graft = results["graft"]
graft

# %% [markdown]
# `graft` was not told of the two codings. To look at afterwards, the coding of each silo, in the same order:

# %%
graft.distribution.groups

# %% [markdown]
# Each silo's accuracy by round, and their mean:

# %%
axes = graft.plot()

# %% [markdown]
# ## A silo's own model
#
# It is an ordinary `nn.Module`:

# %%
graft.personalised(3)

# %% [markdown]
# One seed and few rounds show how it works, not which method is best: [Choosing a method](../choosing.md) has that,
# measured. Next: [your own data](../data.md).

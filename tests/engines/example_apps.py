"""Flower apps as users have them, without a word of Slackwater: one of each kind of Flower's own examples, in few lines."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

PYPROJECT = """\
[project]
name = "theirs"
version = "1.0.0"
description = "For tests"
license = "Apache-2.0"
dependencies = ["flwr>=1.36"]

[tool.flwr.app]
publisher = "me"

[tool.flwr.app.components]
serverapp = "theirs.server_app:app"
clientapp = "theirs.client_app:app"

[tool.flwr.app.config]
num-server-rounds = 3
lr = 0.1  # of local training
"""

SERVER = """\
import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Context
from flwr.serverapp import Grid, ServerApp
{imports}
app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    \"\"\"Train.\"\"\"
    lr = float(context.run_config["lr"])
    arrays = {arrays}
    strategy = {strategy}
    result = strategy.start(
        grid=grid,
        initial_arrays=arrays,
        train_config=ConfigRecord({{"lr": lr}}),
        num_rounds=int(context.run_config["num-server-rounds"]),
    )
    print(result.arrays)
"""

CLIENT = """\
import numpy as np
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
{imports}
app = ClientApp({mods})


def load_data(context):
    number, of = int(context.node_config["partition-id"]), int(context.node_config["num-partitions"])
    random = np.random.default_rng(number)
    x = random.normal(size=(40, 4)).astype(np.float32)
    return x, (x.sum(axis=1) + 0.1 * number / of > 0).astype(np.int64)


@app.train()
def train(msg: Message, context: Context):
    \"\"\"Train on local data.\"\"\"
    x, y = load_data(context)
    lr = msg.content["config"]["lr"]
{train}
    metrics = MetricRecord({{"train_loss": loss, "own-number": float(len(x)), "num-examples": len(x)}})
    return Message(content=RecordDict({{"arrays": arrays, "metrics": metrics}}), reply_to=msg)


@app.evaluate()
def evaluate(msg: Message, context: Context):
    \"\"\"Evaluate on local data.\"\"\"
    x, y = load_data(context)
    metrics = MetricRecord({{"eval_loss": 0.5, "num-examples": len(x)}})
    return Message(content=RecordDict({{"metrics": metrics}}), reply_to=msg)
"""

NUMPY_TRAIN = """\
    w = msg.content["arrays"]["w"].numpy().copy()
    for _ in range(20):
        p = 1 / (1 + np.exp(-(x @ w)))
        w -= (lr * x.T @ (p - y) / len(x)).astype(w.dtype)
    loss = float(np.mean((p > 0.5) != y))
    arrays = ArrayRecord({"w": __import__("flwr").app.Array(w)})
"""
NUMPY_MODEL = 'ArrayRecord({"w": __import__("flwr").app.Array(np.zeros(4, dtype=np.float32))})'
FEDAVG = "from flwr.serverapp.strategy import FedAvg\n"

TORCH_TRAIN = """\
    model = torch.nn.Linear(4, 2)
    model.load_state_dict(msg.content["arrays"].to_torch_state_dict())
    optimiser = torch.optim.SGD(model.parameters(), lr=lr)
    for _ in range(10):
        optimiser.zero_grad()
        error = torch.nn.functional.cross_entropy(model(torch.from_numpy(x)), torch.from_numpy(y))
        error.backward()
        optimiser.step()
    loss = float(error)
    arrays = ArrayRecord(model.state_dict())
"""

SKLEARN_TRAIN = """\
    model = LogisticRegression(max_iter=5, warm_start=True, C=10.0)
    model.classes_ = np.arange(2)
    model.coef_, model.intercept_ = [one.copy() for one in msg.content["arrays"].to_numpy_ndarrays()]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.fit(x, y)
    loss = float(1 - model.score(x, y))
    arrays = ArrayRecord([model.coef_, model.intercept_])
"""

XGBOOST_TRAIN = """\
    data = xgboost.DMatrix(x, label=y)
    params = {"objective": "binary:logistic", "eta": lr, "max_depth": 3, "nthread": 1, "tree_method": "hist"}
    known = msg.content["arrays"]["0"].numpy().tobytes()
    if known:
        booster = xgboost.Booster(params=params, model_file=bytearray(known))
        booster.update(data, booster.num_boosted_rounds())
        booster = booster[booster.num_boosted_rounds() - 1 : booster.num_boosted_rounds()]
    else:
        booster = xgboost.train(params, data, num_boost_round=1)
    loss = 0.5
    arrays = ArrayRecord([np.frombuffer(bytes(booster.save_raw("json")), dtype=np.uint8)])
"""

OWN_STRATEGY = '''\
from flwr.serverapp.strategy import FedAdagrad


class CustomFedAdagrad(FedAdagrad):
    """Lowers the rate of the clients every second round, and remembers the best loss."""

    best = 1.0

    def configure_train(self, server_round, arrays, config, grid):
        config["lr"] = float(config["lr"]) * 0.5 ** (server_round // 2)
        return super().configure_train(server_round, arrays, config, grid)

    def state_dict(self):
        return {"m_t": self.m_t, "v_t": self.v_t, "best": self.best}

    def load_state_dict(self, state):
        self.m_t, self.v_t, self.best = state["m_t"], state["v_t"], state["best"]

    def aggregate_train(self, server_round, replies):
        arrays, metrics = super().aggregate_train(server_round, replies)
        self.best = min(self.best, float(metrics["train_loss"]))
        return arrays, metrics

'''

MODS = '''\

def counting(msg, context, call_next):
    """Reads what a training message carries, and adds a metric to the reply."""
    rate = msg.content["config"]["lr"]
    reply = call_next(msg, context)
    for record in reply.content.metric_records.values():
        record["rate-of-mod"] = float(rate)
    return reply

'''

LORA_TRAIN = """\
    base, a = msg.content["arrays"]["base"].numpy(), msg.content["arrays"]["adapter"].numpy().copy()
    for _ in range(20):
        p = 1 / (1 + np.exp(-(x @ (base + a))))
        a -= (lr * x.T @ (p - y) / len(x)).astype(a.dtype)
    loss = float(np.mean((p > 0.5) != y))
    arrays = ArrayRecord({"adapter": __import__("flwr").app.Array(a)})
"""

PROX_TRAIN = """\
    start = msg.content["arrays"]["w"].numpy()
    w, mu = start.copy(), msg.content["config"]["proximal-mu"]
    for _ in range(20):
        p = 1 / (1 + np.exp(-(x @ w)))
        w -= (lr * (x.T @ (p - y) / len(x) + mu * (w - start))).astype(w.dtype)
    loss = float(np.mean((p > 0.5) != y))
    arrays = ArrayRecord({"w": __import__("flwr").app.Array(w)})
"""

ANALYTICS_SERVER = '''\
from flwr.app import ArrayRecord, Context, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import Strategy

app = ServerApp()


class Histogram(Strategy):
    """Asks the clients for statistics; there is no model."""

    def configure_train(self, server_round, arrays, config, grid):
        content = RecordDict({"config": config})
        return [Message(content, message_type=MessageType.QUERY, dst_node_id=node) for node in grid.get_node_ids()]

    def aggregate_train(self, server_round, replies):
        found = [next(iter(one.content.metric_records.values())) for one in replies if not one.has_error()]
        return None, MetricRecord({"rows": sum(one["rows"] for one in found), "total": sum(one["total"] for one in found)})

    def configure_evaluate(self, server_round, arrays, config, grid):
        return []

    def aggregate_evaluate(self, server_round, replies):
        return None

    def summary(self):
        pass


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Count."""
    strategy = Histogram()
    strategy.start(grid=grid, initial_arrays=ArrayRecord({}), num_rounds=1)
'''
ANALYTICS_CLIENT = """\
import numpy as np
from flwr.app import Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()


@app.query()
def query(msg: Message, context: Context):
    rows = np.random.default_rng(int(context.node_config["partition-id"])).normal(size=30)
    metrics = MetricRecord({"rows": len(rows), "total": float(rows.sum())})
    return Message(RecordDict({"metrics": metrics}), reply_to=msg)
"""


@dataclass(frozen=True, kw_only=True)
class Example:
    """One kind of app."""

    server: str
    client: str
    metric: str = "own-number"  # a metric of its own that must be kept
    needs: str = ""  # module that it needs


def _example(
    *, strategy: str = "FedAvg()", server_imports: str = FEDAVG, arrays: str = NUMPY_MODEL, train: str = NUMPY_TRAIN,
    client_imports: str = "", mods: str = "", metric: str = "own-number", needs: str = "",
) -> Example:  # fmt: skip
    return Example(
        server=SERVER.format(imports=server_imports, arrays=arrays, strategy=strategy),
        client=CLIENT.format(imports=client_imports, mods=mods, train=train.rstrip("\n")),
        metric=metric,
        needs=needs,
    )


_DP = "from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping, FedAvg\n"
EXAMPLES: dict[str, Example] = {
    "quickstart PyTorch": _example(
        server_imports=FEDAVG + "import torch\n", arrays="ArrayRecord(torch.nn.Linear(4, 2).state_dict())",
        client_imports="import torch\n", train=TORCH_TRAIN, needs="torch",
    ),
    "scikit-learn": _example(
        arrays="ArrayRecord([np.zeros((1, 4)), np.zeros(1)])", train=SKLEARN_TRAIN, needs="sklearn",
        client_imports="import warnings\n\nfrom sklearn.linear_model import LogisticRegression\n",
    ),
    "XGBoost bagging": _example(
        strategy="FedXgbBagging()", server_imports="from flwr.serverapp.strategy import FedXgbBagging\n",
        arrays='ArrayRecord([np.frombuffer(b"", dtype=np.uint8)])', client_imports="import xgboost\n",
        train=XGBOOST_TRAIN, needs="xgboost",
    ),
    "XGBoost cyclic": _example(
        strategy="FedXgbCyclic()", server_imports="from flwr.serverapp.strategy import FedXgbCyclic\n",
        arrays='ArrayRecord([np.frombuffer(b"", dtype=np.uint8)])', client_imports="import xgboost\n",
        train=XGBOOST_TRAIN, needs="xgboost",
    ),
    "NumPy, JAX": _example(),
    "own strategy": _example(strategy="CustomFedAdagrad()", server_imports=OWN_STRATEGY),
    "custom mods": _example(client_imports=MODS, mods="mods=[counting]", metric="rate-of-mod"),
    "central DP": _example(
        strategy="DifferentialPrivacyServerSideFixedClipping(FedAvg(), 0.1, 1.0, 3)", server_imports=_DP
    ),
    "central DP, clipping on the clients": _example(
        strategy="DifferentialPrivacyClientSideFixedClipping(FedAvg(), 0.1, 1.0, 3)",
        server_imports=_DP.replace("ServerSide", "ClientSide"),
        client_imports="from flwr.clientapp.mod import fixedclipping_mod\n", mods="mods=[fixedclipping_mod]",
    ),
    "local DP": _example(
        client_imports="from flwr.clientapp.mod import LocalDpMod\n", mods="mods=[LocalDpMod(1.0, 0.01, 1.0, 1e-3)]"
    ),
    "LoRA adapters": _example(
        arrays='ArrayRecord({"base": __import__("flwr").app.Array(np.ones(4, dtype=np.float32)), '
        '"adapter": __import__("flwr").app.Array(np.zeros(4, dtype=np.float32))})',
        train=LORA_TRAIN,
    ),
    "FedProx": _example(
        strategy="FedProx(proximal_mu=0.1)", server_imports="from flwr.serverapp.strategy import FedProx\n",
        train=PROX_TRAIN,
    ),
    "federated analytics (QUERY)": Example(server=ANALYTICS_SERVER, client=ANALYTICS_CLIENT, metric="rows"),
}  # fmt: skip


def write_example(folder: Path, name: str) -> Path:
    """Write an app as its user has it."""
    package = folder / "theirs"
    package.mkdir(parents=True)
    (folder / "pyproject.toml").write_text(PYPROJECT)
    (package / "__init__.py").write_text("")
    (package / "client_app.py").write_text(EXAMPLES[name].client)
    (package / "server_app.py").write_text(EXAMPLES[name].server)
    return folder

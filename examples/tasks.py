"""Personal layers and evaluation on clients: three clients share a slope, and each keeps an offset of its own."""

import threading

import numpy as np

import thalweg


def member(url, name, offset):
    """A client's program. Its data is y = 3x + offset; it learns the offset for itself, and it never travels."""
    x = np.linspace(-1, 1, 20)
    y = 3 * x + offset
    personal = 0.0

    def work(task):
        nonlocal personal
        slope = float(task.tensors["slope"])
        if task.head["do"] == "evaluate":
            return {"loss": float(np.mean((slope * x + personal - y) ** 2))}
        for _ in range(20):
            error = slope * x + personal - y
            slope -= 0.3 * float(np.mean(error * x))
            personal -= 0.3 * float(np.mean(error))
        return {"personal": personal}, {"slope": np.array(slope)}, len(x)

    with thalweg.TaskClient(url, name=name) as client:
        client.run(work)


def main():
    offsets = {"anna": -2.0, "ben": 0.0, "clara": 5.0}
    with thalweg.TaskServer() as server:
        for name, offset in offsets.items():
            threading.Thread(target=member, args=(server.address, name, offset)).start()
        server.wait(len(offsets))
        slope = {"slope": np.array(0.0)}
        for number in range(1, 6):
            slope = server.send({"do": "train"}, slope, reduce="mean", deadline=30).mean()
            replies = server.send({"do": "evaluate"}, slope, deadline=30).replies()
            losses = [reply.head["loss"] for reply in replies.values() if reply.done]
            print(f"round {number}: slope {float(slope['slope']):.3f}, mean loss {np.mean(losses):.4f}")


if __name__ == "__main__":
    main()

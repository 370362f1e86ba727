"""Works that take no time: a few clients, a small network, synthetic images."""

from contest.works import Task, Work

PERCEPTRON = Work(name="small", widths=(784, 6, 10), cohort=5, examples=30)
NORMED = Work(name="small normed", widths=(784, 6, 10), normalised=True, cohort=3, examples=20)
CNN = Work(name="small cnn", widths=None, cohort=2, examples=20)
GRU = Work(name="small gru", widths=None, network="gru", tokens=True, cohort=2, examples=20)


def task(work: Work = PERCEPTRON, *, batch_size: int = 10) -> Task:
    return Task(work=work, batch_size=batch_size)

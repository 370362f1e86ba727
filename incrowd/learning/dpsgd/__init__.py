"""DP-SGD on the records of one silo (Abadi et al. 2016).

Silos, parties, audits and the FEDn example rely on these promises:

- A record is in each step's batch independently, with the same probability (Poisson sampling).
- Each record's gradient is clipped to `clip_norm` in one L2 norm. A gradient that is not finite counts as zero.
- One record moves a step's sum by at most `RecordTraining.sensitivity`, rounding included.
- A record's norm and clipped gradient are, bit for bit, a function of the record, the weights and the settings.
- Each step's sum goes to `noise` once, of an empty batch too, and only the result moves the weights.
- The divisor is the public expected batch. The engine spends no budget and draws no noise.
- The model, the settings and public numbers select how gradients are computed; the number of records does not.
"""

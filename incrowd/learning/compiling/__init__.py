"""Functions compiled by torch: whether that pays, and what helps it.

| file         | what                                                             |
| ------------ | ---------------------------------------------------------------- |
| `worth`      | whether compiling pays, by facts that are the same for everybody |
| `function`   | a function, compiled for the shapes of one call                  |
| `private`    | the folder for compiled code, of this user alone                 |
| `attention`  | attention written out where that is faster                       |
| `places`     | a place that is taken at the end, taken at the beginning         |
| `unrolled`   | recurrent layers written out in time, which torch can compile    |
| `remembered` | all that own code can hold, to see whether a call changed it     |
"""

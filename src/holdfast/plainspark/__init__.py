"""From plain Spark to Holdfast and back: adopt the checkpoint of a query, eject a stream as a checkpoint.

Public: `eject` and its result `Ejection`; the plan and the result of an adoption, `AdoptPlan` and `Adoption`, with
`AdoptedSource` and `LastBatch`. The adoption itself needs Spark: `plan_adopt` and `apply_adopt` of
`holdfast.spark`.
"""

from holdfast.plainspark.adoption import Adoption, AdoptPlan
from holdfast.plainspark.ejecting import Ejection, eject
from holdfast.plainspark.inputs import AdoptedSource
from holdfast.plainspark.records import LastBatch

__all__ = ["AdoptPlan", "AdoptedSource", "Adoption", "Ejection", "LastBatch", "eject"]

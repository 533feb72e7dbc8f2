"""Cloud regions as zones: `aws:eu-west-3` is the grid of Paris, FR.

The place of a region is the provider's own statement: docs.aws.amazon.com/global-infrastructure (AWS),
cloud.google.com/about/locations (Google) and learn.microsoft.com/azure/reliability/regions-list (Azure), read in 2025. The
zone is the one of Electricity Maps at that place (app.electricitymaps.com). Only regions whose place lies in one zone
without doubt are listed: for a region near the border of two grids, such as AWS's in Oregon, name the zone yourself.
"""

from __future__ import annotations

from slackwater.errors import ScenarioError
from slackwater.registry import did_you_mean

_AWS = (
    "af-south-1 ZA, ap-east-1 HK, ap-northeast-1 JP-TK, ap-northeast-2 KR, ap-northeast-3 JP-KN, ap-south-1 IN-WE, "
    "ap-south-2 IN-SO, ap-southeast-1 SG, ap-southeast-2 AU-NSW, ap-southeast-4 AU-VIC, ca-central-1 CA-QC, ca-west-1 CA-AB, "
    "eu-central-1 DE, eu-central-2 CH, eu-north-1 SE-SE3, eu-south-1 IT-NO, eu-south-2 ES, eu-west-1 IE, eu-west-2 GB, "
    "eu-west-3 FR, il-central-1 IL, me-central-1 AE, me-south-1 BH, sa-east-1 BR-CS, us-east-1 US-MIDA-PJM, "
    "us-east-2 US-MIDA-PJM, us-west-1 US-CAL-CISO"
)
_GCP = (
    "asia-east1 TW, asia-east2 HK, asia-northeast1 JP-TK, asia-northeast2 JP-KN, asia-northeast3 KR, asia-south1 IN-WE, "
    "asia-south2 IN-NO, asia-southeast1 SG, australia-southeast1 AU-NSW, australia-southeast2 AU-VIC, europe-central2 PL, "
    "europe-north1 FI, europe-southwest1 ES, europe-west1 BE, europe-west2 GB, europe-west3 DE, europe-west4 NL, "
    "europe-west6 CH, europe-west8 IT-NO, europe-west9 FR, europe-west10 DE, europe-west12 IT-NO, me-west1 IL, "
    "northamerica-northeast1 CA-QC, northamerica-northeast2 CA-ON, southamerica-east1 BR-CS, southamerica-west1 CL-SEN, "
    "us-central1 US-MIDW-MISO, us-east1 US-CAR-SC, us-east4 US-MIDA-PJM, us-east5 US-MIDA-PJM, us-south1 US-TEX-ERCO, "
    "us-west2 US-CAL-LDWP, us-west3 US-NW-PACE, us-west4 US-NW-NEVP"
)
_AZURE = (
    "australiaeast AU-NSW, australiasoutheast AU-VIC, austriaeast AT, belgiumcentral BE, brazilsouth BR-CS, "
    "canadacentral CA-ON, canadaeast CA-QC, centralindia IN-WE, centralus US-MIDW-MISO, eastasia HK, eastus US-MIDA-PJM, "
    "eastus2 US-MIDA-PJM, francecentral FR, germanywestcentral DE, israelcentral IL, italynorth IT-NO, japaneast JP-TK, "
    "japanwest JP-KN, koreacentral KR, northcentralus US-MIDA-PJM, northeurope IE, norwayeast NO-NO1, polandcentral PL, "
    "qatarcentral QA, southafricanorth ZA, southcentralus US-TEX-ERCO, southeastasia SG, southindia IN-SO, spaincentral ES, "
    "swedencentral SE-SE3, switzerlandnorth CH, uaenorth AE, uksouth GB, ukwest GB, westeurope NL, westindia IN-WE"
)
CLOUDS = ("aws", "gcp", "azure")
REGIONS: dict[str, str] = {
    f"{cloud}:{region}": zone
    for cloud, table in zip(CLOUDS, (_AWS, _GCP, _AZURE), strict=True)
    for region, zone in (pair.split() for pair in table.split(", "))
}
"""Cloud and region -> zone."""


def regions_of(zone: str) -> list[str]:
    """Return the cloud regions on the grid of a zone."""
    return [region for region, grid in REGIONS.items() if grid == zone]


def grid_zone(zone: str) -> str:
    """Return the zone of a cloud region, and any other zone unchanged.

    Raises:
        ScenarioError: The region is not in the table.
    """
    key = zone.strip().lower()
    if key.partition(":")[0] not in CLOUDS or ":" not in key:  # a zone of the user's own data may have a colon
        return zone
    if key in REGIONS:
        return REGIONS[key]
    known = [name for name in REGIONS if name.startswith(f"{key.partition(':')[0]}:")]
    raise ScenarioError(
        f"There is no zone for the cloud region {zone!r}.{did_you_mean(key, known)} Name the electricity zone of its place instead."
    )

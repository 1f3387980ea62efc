"""Names and verbs classes of the CQE error codes of the Diamond family (device.md section 2.5).

This NIC gives only those of `pymodel.formats.cqe.CqeError`; the others are here so that a CQE of a real
device can be read.
"""

from typing import Final

ERROR_NAMES: Final = {
    0x00: "OK", 0x1F: "NAK_FLUSH", 0x28: "CEM",
    0x80: "QPM_CFG", 0x81: "MET_CFG", 0x82: "PPE_CFG", 0x83: "PG_CFG", 0x84: "SV_CFG",
    0x89: "ATOMIC_VA_REQ", 0x9F: "SND_WQE_LEN",
    0xA0: "NAK_SEQ_ERR", 0xA1: "READ_DROP", 0xA2: "RTO_REQ", 0xA3: "NAK_RNR", 0xA4: "NAK_INV_REQ",
    0xA5: "NAK_MR", 0xA6: "NAK_REMOTE_OPER_ERR", 0xA7: "LOCAL_MR_REQ", 0xA8: "READ_RSP_LEN",
    0xAA: "READ_RSP_OPCODE", 0xAB: "SND_WQE_FORMAT", 0xAC: "SND_WQE_DMA", 0xAD: "SND_WQE_STATUS",
    0xAE: "SV_RTO_RSP", 0xAF: "RCV_WQE_DMA",
    0xB2: "DATA_DMA_RD_REQ", 0xB3: "DATA_DMA_WR_REQ", 0xB4: "DATA_DMA_WR_RSP_GEN_CQE",
    0xB5: "DATA_DMA_WR_RSP", 0xB6: "DATA_DMA_RD_RSP", 0xB7: "NO_CLASSIFIED", 0xB9: "RCV_WQE_STATUS",
    0xBA: "QPM", 0xBB: "SV", 0xBC: "MET", 0xBD: "PPE", 0xBE: "PG", 0xBF: "REQ_MTT_DMA_RD",
    0xC0: "RCV_WQE_SIZE_RC", 0xC1: "OPCODE_SEQ_GEN_CQE", 0xC2: "OPCODE_SEQ", 0xC4: "LEN_GEN_CQE",
    0xC5: "LEN", 0xC8: "READ_RSP_ATOMIC_MSN_BDT", 0xCA: "EMSN_GEN_CQE", 0xCB: "RQ_EMSN_GEN_CQE",
    0xCC: "READ_RSP_WQE_DMA_RD", 0xCD: "RO_DMA_RD", 0xCE: "RSP_MTT_DMA_RD", 0xCF: "ATOMIC_VA_REQ_BDT",
    0xD0: "ATOMIC_VA_RSP", 0xD1: "RSP_MTT_DMA_RD_GEN_CQE", 0xD4: "REMOTE_MR", 0xD5: "REMOTE_MR_GEN_CQE",
    0xD6: "LOCAL_MR_RSP", 0xD7: "ACC_TYPE_MR", 0xD8: "ACC_TYPE_MR_GEN_CQE", 0xD9: "LOCAL_MR_REQ_BDT",
    0xDA: "READ_RSP_LEN_BDT", 0xDB: "READ_RSP_OPCODE_BDT", 0xDC: "REQ_MTT_DMA_RD_BDT", 0xDD: "MSN_GEN_CQE",
    0xDE: "MSN", 0xFF: "FLUSH",
}  # fmt: skip

_CLASSES: Final = {
    "RETRY_EXC": (0xA0, 0xA1, 0xA2, 0xAE),
    "RNR_RETRY": (0xA3,),
    "REM_INV_REQ": (0x89, 0xA4, 0xC1, 0xC2, 0xCF, 0xD7, 0xD8),
    "REM_ACCESS": (0xA5,),
    "REM_OP": (0xA6,),
    "LOC_PROT": (0xA7, 0xD0, 0xD6, 0xD9),
    "LOC_LEN": (0x9F, 0xA8, 0xC0, 0xC4, 0xC5, 0xDA),
    "BAD_RESP": (0xAA, 0xDB),
    "LOC_QP_OP": (0xAB, 0xAC, 0xAD, 0xB9),
    "LOC_ACCESS": (0xD4, 0xD5),
    "WR_FLUSH": (0x1F, 0xFF),
    "FATAL": (0x28, *range(0x80, 0x85), 0xAF, *range(0xB2, 0xB7), *range(0xBA, 0xC0), 0xCC, 0xCD, 0xCE, 0xD1,
              0xDC),
}  # fmt: skip
_CLASS_OF: Final = {code: name for name, codes in _CLASSES.items() for code in codes}

_MEANINGS: Final = {
    0x89: "an atomic at an address that is not aligned",
    0x9F: "the WQE's lengths do not fit",
    0xA2: "no answer from the peer, all transport retries used up",
    0xA3: "the peer was not ready (RNR), all retries used up",
    0xA4: "the peer refused the request as invalid (NAK 1)",
    0xA5: "the peer refused key, right or address range (NAK 2)",
    0xA6: "the peer could not carry it out (NAK 3)",
    0xA7: "wrong key, right or address range of the own memory",
    0xA8: "a READ response of a wrong length",
    0xAA: "a READ response of a wrong opcode",
    0xAB: "a malformed WQE",
    0xAC: "a bus error when the WQE was fetched",
    0xB2: "a bus error when the payload was read",
    0xB3: "a bus error when the answer was written",
    0xFF: "flushed, as the QP was in error",
}


def meaning(code: int) -> str:
    """What an error_code says, in words: of those that this NIC gives (nic.md 4 to 6), else its class."""
    return _MEANINGS.get(code, f"class {verbs_class(code)}")


def error_name(code: int) -> str:
    """Name of an 8-bit error_code, "unknown" where the page has none."""
    return ERROR_NAMES.get(code, "unknown")


def verbs_class(code: int) -> str:
    """Verbs class of an error_code: "SUCCESS", a class of device.md 2.5, or "GENERAL" for all others."""
    return _CLASS_OF.get(code, "GENERAL") if code else "SUCCESS"

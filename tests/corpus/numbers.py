"""Row functions that clean and scale numbers, as users write them for training."""

from __future__ import annotations

import math

import numpy as np

from tests.corpus.case import F4, I4, U1, B, Case, F, I, Row, S

MEAN, STD = 12.5, 3.75
BINS = (0.0, 1.0, 5.0, 25.0, 100.0)


def log_price(row: Row) -> Row:
    return {"log_price": math.log1p(max(row["price"], 0.0)), "id": row["id"]}


def standardised(row: Row) -> Row:
    return {"z": (row["x"] - MEAN) / STD}


def clipped(row: Row) -> Row:
    return {"x": min(max(row["x"], -3.0), 3.0)}


def click_rate(row: Row) -> Row:
    shown, clicked = row["shown"], row["clicked"]
    rate = clicked / shown if shown > 0 else 0.0
    return {**row, "rate": rate}


def filled(row: Row) -> Row:
    age = row["age"] if row["age"] is not None else 38
    fare = row["fare"]
    if fare is None or math.isnan(fare):
        fare = 14.45
    return {"age": age, "fare": fare}


def age_band(row: Row) -> Row:
    age = row["age"]
    if age < 13:
        band = "child"
    elif age < 20:
        band = "teen"
    elif age < 65:
        band = "adult"
    else:
        band = "senior"
    return {"band": band, "survived": row["survived"]}


def bucket(row: Row) -> Row:
    number = 0
    for edge in BINS:
        if row["x"] >= edge:
            number += 1
    return {"bucket": number}


def minute_of_day(row: Row) -> Row:
    hours, rest = divmod(row["seconds"] % 86400, 3600)
    return {"minute": hours * 60 + rest // 60}


def distance(row: Row) -> Row:
    dx, dy = row["x1"] - row["x0"], row["y1"] - row["y0"]
    return {"distance": math.sqrt(dx * dx + dy * dy), "manhattan": abs(dx) + abs(dy)}


def haversine(row: Row) -> Row:
    a = math.radians(row["lat0"])
    b = math.radians(row["lat1"])
    half = math.sin((b - a) / 2) ** 2
    turn = math.sin(math.radians(row["lon1"] - row["lon0"]) / 2) ** 2
    h = half + math.cos(a) * math.cos(b) * turn
    return {"km": 2 * 6371.0 * math.asin(math.sqrt(h))}


def sigmoid(row: Row) -> Row:
    return {"p": 1.0 / (1.0 + math.exp(-row["logit"]))}


def leaky(row: Row) -> Row:
    x = row["x"]
    return {"x": x if x > 0 else 0.01 * x}


def relative_change(row: Row) -> Row:
    before, after = row["before"], row["after"]
    if not before:
        return {"change": 0.0}
    return {"change": (after - before) / abs(before)}


def in_range(row: Row) -> bool:
    return bool(0.0 < row["x"] <= 100.0)


def plausible(row: Row) -> bool:
    return row["fare"] is not None and row["fare"] > 0 and 1 <= row["passengers"] <= 6


def rounded(row: Row) -> Row:
    return {"cents": round(row["price"] * 100), "price": round(row["price"], 2)}


def pixel(row: Row) -> Row:
    return {"x": row["value"] / 255.0, "ink": row["value"] > 127}


def narrow(row: Row) -> Row:
    return {"y": row["a"] * 2 + row["k"], "a": row["a"]}


def angle(row: Row) -> Row:
    turn = 2 * math.pi * row["hour"] / 24
    return {"sin": math.sin(turn), "cos": math.cos(turn)}


def polynomial(row: Row) -> Row:
    x = row["x"]
    return {"x": x, "x2": x * x, "x3": x**3}


def log_ratio(row: Row) -> Row:
    if row["a"] <= 0 or row["b"] <= 0:
        return {"r": 0.0}
    return {"r": math.log(row["a"] / row["b"])}


def numpy_log(row: Row) -> Row:
    return {"y": np.log1p(row["x"])}


def numpy_clip(row: Row) -> Row:
    return {"y": np.clip(row["x"], 0.0, 1.0)}


def numpy_root(row: Row) -> Row:
    return {"y": np.sqrt(abs(row["x"])), "bad": bool(np.isnan(row["x"]))}


def numpy_float32(row: Row) -> Row:
    return {"y": float(np.float32(row["x"]))}


def valid_flags(row: Row) -> Row:
    fine = math.isfinite(row["x"]) and not row["deleted"]
    return {"fine": fine, "x": row["x"] if fine else 0.0}


def safe_ratio(row: Row) -> Row:
    try:
        ratio = row["a"] / row["b"]
    except ZeroDivisionError:
        ratio = 0.0
    return {"ratio": ratio}


def parity(row: Row) -> Row:
    return {
        "even": row["n"] % 2 == 0,
        "half": row["n"] // 2,
        "sign": (row["n"] > 0) - (row["n"] < 0),
    }


def flags(row: Row) -> Row:
    mask = row["mask"]
    return {"a": bool(mask & 1), "b": bool(mask & 2), "c": (mask >> 2) & 3}


def weight(row: Row) -> Row:
    return {"w": 0.5 ** (row["days"] / 30)}


def huber(row: Row) -> Row:
    error = abs(row["y"] - row["p"])
    return {"loss": 0.5 * error * error if error <= 1.0 else error - 0.5}


def parsed(row: Row) -> Row:
    return {"x": float(row["text"])}


def parsed_or(row: Row) -> Row:
    try:
        return {"n": int(row["text"])}
    except (ValueError, TypeError):
        return {"n": -1}


CASES = [
    Case(log_price, {"id": I, "price": F}, numeric=True),
    Case(standardised, {"x": F}, numeric=True),
    Case(clipped, {"x": F}, numeric=True),
    Case(click_rate, {"shown": I, "clicked": I}, numeric=True),
    Case(filled, {"age": I, "fare": F}, numeric=True),
    Case(age_band, {"age": I, "survived": B}),
    Case(bucket, {"x": F}, numeric=True),
    Case(minute_of_day, {"seconds": I}, numeric=True),
    Case(distance, {"x0": F, "x1": F, "y0": F, "y1": F}, numeric=True),
    Case(haversine, {"lat0": F, "lat1": F, "lon0": F, "lon1": F}, numeric=True),
    Case(sigmoid, {"logit": F}, numeric=True),
    Case(leaky, {"x": F}, numeric=True),
    Case(relative_change, {"before": F, "after": F}, numeric=True),
    Case(in_range, {"x": F}, keeps=True, numeric=True),
    Case(plausible, {"fare": F, "passengers": I}, keeps=True, numeric=True),
    Case(rounded, {"price": F}, numeric=True),
    Case(pixel, {"value": U1}, numeric=True),
    Case(narrow, {"a": F4, "k": I4}, numeric=True),
    Case(angle, {"hour": I}, numeric=True),
    Case(polynomial, {"x": F}, numeric=True),
    Case(log_ratio, {"a": F, "b": F}, numeric=True),
    Case(numpy_log, {"x": F}, why="numpy", numeric=True),
    Case(numpy_clip, {"x": F}, why="numpy", numeric=True),
    Case(numpy_root, {"x": F}, why="numpy", numeric=True),
    Case(numpy_float32, {"x": F}, why="numpy", numeric=True),
    Case(valid_flags, {"x": F, "deleted": B}, numeric=True),
    Case(safe_ratio, {"a": F, "b": F}, numeric=True),
    Case(parity, {"n": I}, numeric=True),
    Case(flags, {"mask": I}, numeric=True),
    Case(weight, {"days": F}, numeric=True),
    Case(huber, {"y": F, "p": F}, numeric=True),
    Case(parsed, {"text": S}),
    Case(parsed_or, {"text": S}),
]

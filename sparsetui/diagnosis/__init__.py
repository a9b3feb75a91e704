"""Deciding: statistics, mechanisms, the regression budget and the verdict. Pure: evidence in, conclusions out."""

"""x"""
from typing import Any
def page(e: Any) -> str: 
    return ""

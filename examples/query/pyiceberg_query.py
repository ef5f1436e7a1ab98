#!/usr/bin/env python3
"""The busiest pages, with PyIceberg through the built-in Iceberg REST catalog.

    pip install 'pyiceberg[pyarrow]'
    python examples/query/pyiceberg_query.py default.clicks
"""

import sys

from pyiceberg.catalog import load_catalog

catalog = sys.argv[2] if len(sys.argv) > 2 else "http://127.0.0.1:8081/iceberg"
table = sys.argv[1] if len(sys.argv) > 1 else "default.clicks"

pages = load_catalog("tabletopic", type="rest", uri=catalog).load_table(table).scan(selected_fields=("page",)).to_arrow()
counts = pages.group_by("page").aggregate([([], "count_all")])
for row in counts.sort_by([("count_all", "descending"), ("page", "ascending")]).slice(0, 5).to_pylist():
    print(f"{row['page']}\t{row['count_all']}")

#!/usr/bin/env python3
"""The busiest pages, with DuckDB through the built-in Iceberg REST catalog.

    pip install duckdb
    python examples/query/duckdb_query.py default.clicks

In DuckDB's own shell: INSTALL iceberg; LOAD iceberg; then the ATTACH and the SELECT below.
"""

import glob
import sys

import duckdb

catalog = sys.argv[2] if len(sys.argv) > 2 else "http://127.0.0.1:8081/iceberg"
table = sys.argv[1] if len(sys.argv) > 1 else "default.clicks"

con = duckdb.connect()
for name in ("httpfs", "avro", "iceberg"):
    # From the wheel duckdb-extension-NAME if it is installed, else DuckDB downloads it.
    wheel = glob.glob(f"{sys.prefix}/lib/python*/site-packages/duckdb_extension_{name}/extensions/*/*.duckdb_extension")
    if not wheel:
        con.install_extension(name)
    con.load_extension(wheel[0] if wheel else name)
con.execute(f"ATTACH '' AS ice (TYPE iceberg, ENDPOINT '{catalog}', AUTHORIZATION_TYPE 'none', ACCESS_DELEGATION_MODE 'none')")
rows = con.execute(f"SELECT page, count(*) AS clicks FROM ice.{table} GROUP BY page ORDER BY clicks DESC, page LIMIT 5").fetchall()
for page, clicks in rows:
    print(f"{page}\t{clicks}")

#!/usr/bin/env python3
"""The busiest pages, with Spark through the built-in Iceberg REST catalog.

    pip install pyspark==4.1.4
    python examples/query/spark_query.py default.clicks

SPARK_JARS names jars to use instead of fetching the Iceberg runtime from Maven Central.
"""

import os
import sys

from pyspark.sql import SparkSession

catalog = sys.argv[2] if len(sys.argv) > 2 else "http://127.0.0.1:8081/iceberg"
table = sys.argv[1] if len(sys.argv) > 1 else "default.clicks"

builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
if os.environ.get("SPARK_JARS"):
    builder = builder.config("spark.jars", os.environ["SPARK_JARS"])
else:
    builder = builder.config("spark.jars.packages", "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0")
spark = (
    builder.config("spark.sql.catalog.ice", "org.apache.iceberg.spark.SparkCatalog")
    .config("spark.sql.catalog.ice.type", "rest")
    .config("spark.sql.catalog.ice.uri", catalog)
    .getOrCreate()
)
spark.sparkContext.setLogLevel("ERROR")
rows = spark.sql(f"SELECT page, count(*) AS clicks FROM ice.{table} GROUP BY page ORDER BY clicks DESC, page LIMIT 5").collect()
for row in rows:
    print(f"{row.page}\t{row.clicks}")

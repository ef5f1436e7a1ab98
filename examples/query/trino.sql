-- The busiest pages, with Trino through the built-in Iceberg REST catalog. The catalog is a
-- file etc/catalog/ice.properties, or, where dynamic catalogs are on, this statement.
CREATE CATALOG IF NOT EXISTS ice USING iceberg WITH (
  "iceberg.catalog.type" = 'rest',
  "iceberg.rest-catalog.uri" = 'http://127.0.0.1:8081/iceberg',
  "fs.local.enabled" = 'true',
  "local.location" = '/'
);
SELECT page, count(*) AS clicks FROM ice.default.clicks GROUP BY page ORDER BY clicks DESC, page LIMIT 5;

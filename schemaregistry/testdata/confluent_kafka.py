"""Calls a schema registry as applications with confluent-kafka do. Usage: confluent_kafka.py URL"""

import os
import sys

sys.path.pop(0)  # this directory, where this file has the name of the package

from confluent_kafka.schema_registry import Schema, SchemaReference, SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.schema_registry.error import SchemaRegistryError
from confluent_kafka.serialization import MessageField, SerializationContext

client = SchemaRegistryClient({"url": sys.argv[1]})


def fails(code, call, *args, **kw):
    try:
        call(*args, **kw)
    except SchemaRegistryError as e:
        assert e.error_code == code, (e.error_code, code, e)
        return
    raise AssertionError(f"no error, want {code}")


ADDRESS = '{"type":"record","name":"Address","namespace":"x","fields":[{"name":"street","type":"string"}]}'
PERSON = """{"type": "record", "name": "Person", "namespace": "x", "fields": [
    {"name": "name", "type": "string"},
    {"name": "home", "type": "x.Address"},
    {"name": "since", "type": ["null", {"type": "long", "logicalType": "timestamp-millis"}], "default": null}]}"""

# A serializer registers its schema by itself, and the reader finds it by id.
context = SerializationContext("plain", MessageField.VALUE)
value = {"street": "Main"}
payload = AvroSerializer(client, ADDRESS)(value, context)
assert payload[:5] == b"\x00\x00\x00\x00\x01", payload
assert AvroDeserializer(SchemaRegistryClient({"url": sys.argv[1]}))(payload, context) == value

# The same with a reference.
assert client.register_schema("address", Schema(ADDRESS, "AVRO")) == 1
person = Schema(PERSON, "AVRO", [SchemaReference("x.Address", "address", 1)])
context = SerializationContext("people", MessageField.VALUE)
value = {"name": "A", "home": {"street": "Main"}, "since": None}
payload = AvroSerializer(client, person)(value, context)
assert AvroDeserializer(SchemaRegistryClient({"url": sys.argv[1]}))(payload, context) == value

# Without registering: by look-up, and by the latest version.
payload = AvroSerializer(client, person, conf={"auto.register.schemas": False})(value, context)
latest = AvroSerializer(client, None, conf={"auto.register.schemas": False, "use.latest.version": True})
assert latest(value, context) == payload
normal = AvroSerializer(client, person, conf={"normalize.schemas": True})
assert normal(value, context)[:5] == payload[:5]

assert client.get_subjects() == ["address", "people-value", "plain-value"], client.get_subjects()
assert client.get_versions("people-value") == [1]
assert client.get_latest_version("people-value").schema_id == 2
assert client.get_version("people-value", 1).schema.references[0].subject == "address"
assert client.lookup_schema("people-value", person).version == 1
assert client.get_schema(2).schema_type == "AVRO"
assert client.get_compatibility() == "BACKWARD"
client.set_compatibility("address", "FULL")
assert client.get_compatibility("address") == "FULL"
other = Schema('{"type":"record","name":"Address","namespace":"x","fields":[{"name":"zip","type":"string"}]}', "AVRO")
assert client.test_compatibility("address", Schema(ADDRESS, "AVRO"))
assert not client.test_compatibility("address", other)
fails(409, client.register_schema, "address", other)
fails(42201, client.register_schema, "address", Schema("{", "AVRO"))
fails(409, client.register_schema, "address", Schema('syntax = "proto3";', "PROTOBUF"))
fails(42201, client.register_schema, "address", Schema('syntax = "proto3"', "PROTOBUF"))
fails(40401, client.get_latest_version, "nothing")
fails(40402, client.get_version, "address", 7)
fails(40403, SchemaRegistryClient({"url": sys.argv[1]}).get_schema, 99)
fails(42206, client.delete_subject, "address")
assert client.delete_subject("people-value") == [1]
assert client.delete_subject("people-value", permanent=True)
assert client.delete_version("address", 1) == 1

# Protobuf and JSON Schema, with references, are read back by id as they were registered.
COMMON = 'syntax = "proto3";\npackage x;\nmessage Address {\n  string street = 1;\n}\n'
PERSON = 'syntax = "proto3";\nimport "common.proto";\nimport "google/protobuf/timestamp.proto";\nmessage Person {\n  x.Address home = 1;\n  google.protobuf.Timestamp since = 2;\n}\n'
client.register_schema("common.proto", Schema(COMMON, "PROTOBUF"))
person = Schema(PERSON, "PROTOBUF", [SchemaReference("common.proto", "common.proto", 1)])
id = client.register_schema("person-proto", person)
read = SchemaRegistryClient({"url": sys.argv[1]}).get_schema(id)
assert (read.schema_type, read.schema_str) == ("PROTOBUF", PERSON), read
assert read.references[0].name == "common.proto", read
assert client.lookup_schema("person-proto", person).schema_id == id
assert not client.test_compatibility("person-proto", Schema('syntax = "proto3"; message Person { string home = 1; }', "PROTOBUF"))
assert client.test_compatibility("person-proto", Schema(PERSON.replace("since = 2;", "since = 2;\n  int32 age = 3;"), "PROTOBUF", person.references))

ADDRESS = '{"type":"object","properties":{"street":{"type":"string"}},"additionalProperties":false}'
PERSON = '{"$schema":"https://json-schema.org/draft/2020-12/schema","type":"object","properties":{"home":{"$ref":"address.json"}},"additionalProperties":false}'
client.register_schema("address.json", Schema(ADDRESS, "JSON"))
person = Schema(PERSON, "JSON", [SchemaReference("address.json", "address.json", 1)])
id = client.register_schema("person-json", person)
read = SchemaRegistryClient({"url": sys.argv[1]}).get_schema(id)
assert (read.schema_type, read.schema_str, read.references[0].subject) == ("JSON", PERSON, "address.json"), read
assert client.lookup_schema("person-json", person).schema_id == id
assert client.test_compatibility("person-json", Schema(PERSON.replace('"home":', '"age":{"type":"integer"},"home":'), "JSON", person.references))
assert not client.test_compatibility("person-json", Schema(PERSON.replace('"home":', '"work":'), "JSON", person.references))
fails(42206, client.delete_subject, "address.json")
fails(42201, client.register_schema, "person-json", Schema(PERSON, "JSON"))

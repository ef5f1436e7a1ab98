"""Calls a schema registry as applications with confluent-kafka do. Usage: confluent_kafka.py URL"""

import os
import sys

sys.path.pop(0)  # this directory, where this file has the name of the package

from confluent_kafka.schema_registry import Schema, SchemaReference, SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.schema_registry.error import SchemaRegistryError
from confluent_kafka.schema_registry.json_schema import JSONDeserializer, JSONSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer, ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext, SerializationError
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, timestamp_pb2

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

# The Protobuf serializer registers what a file imports, the files that those import first, as descriptors. A
# reader that knows its message finds the payload by the path of indexes alone.
FIELD = descriptor_pb2.FieldDescriptorProto


def message(path, message, imports, *fields):
    f = descriptor_pb2.FileDescriptorProto(name=path, package="y", syntax="proto3", dependency=imports)
    m = f.message_type.add(name=message)
    for number, (name, type) in enumerate(fields, 1):
        field = m.field.add(name=name, number=number, label=FIELD.LABEL_OPTIONAL)
        if isinstance(type, str):
            field.type, field.type_name = FIELD.TYPE_MESSAGE, type
        else:
            field.type = type
    descriptor_pool.Default().AddSerializedFile(f.SerializeToString())
    return message_factory.GetMessageClass(descriptor_pool.Default().FindMessageTypeByName("y." + message))


assert timestamp_pb2.DESCRIPTOR
City = message("y/city.proto", "City", [], ("name", FIELD.TYPE_STRING))
Address = message("y/address.proto", "Address", ["y/city.proto"], ("street", FIELD.TYPE_STRING), ("city", ".y.City"))
Person = message("y/person.proto", "Person", ["y/address.proto", "google/protobuf/timestamp.proto"],
                 ("home", ".y.Address"), ("since", ".google.protobuf.Timestamp"), ("id", FIELD.TYPE_INT64))
value = Person(home=Address(street="Main", city=City(name="Ulm")), id=7)
value.since.FromSeconds(5)
context = SerializationContext("protos", MessageField.VALUE)
payload = ProtobufSerializer(Person, client)(value, context)
assert ProtobufDeserializer(Person, schema_registry_client=SchemaRegistryClient({"url": sys.argv[1]}))(payload, context) == value
fresh = SchemaRegistryClient({"url": sys.argv[1]})
registered = fresh.get_latest_version("protos-value")
assert [(r.name, r.subject, r.version) for r in registered.schema.references] == [("y/address.proto", "y/address.proto", 1)], registered
assert fresh.get_latest_version("y/address.proto").schema.references[0].subject == "y/city.proto"
for conf in ({"auto.register.schemas": False}, {"auto.register.schemas": False, "use.latest.version": True}):
    again = ProtobufSerializer(Person, SchemaRegistryClient({"url": sys.argv[1]}), conf)(value, context)
    assert again == payload, (conf, again, payload)
fails(42206, client.delete_subject, "y/city.proto")

# The JSON Schema serializer checks values against a schema whose references it reads from the registry.
context = SerializationContext("jsons", MessageField.VALUE)
value = {"home": {"street": "Main"}}
payload = JSONSerializer(person, client)(value, context)
assert JSONDeserializer(None, schema_registry_client=SchemaRegistryClient({"url": sys.argv[1]}))(payload, context) == value
assert JSONDeserializer(person, schema_registry_client=client)(payload, context) == value
looked = JSONSerializer(person, SchemaRegistryClient({"url": sys.argv[1]}), conf={"auto.register.schemas": False})
assert looked(value, context) == payload
latest = JSONSerializer(None, SchemaRegistryClient({"url": sys.argv[1]}), conf={"auto.register.schemas": False, "use.latest.version": True})
assert latest(value, context) == payload
for wrong in ({"home": {"street": 5}}, {"home": {"zip": "1"}}, {"work": {}}):
    try:
        JSONSerializer(person, client)(wrong, context)
    except SerializationError:
        continue
    raise AssertionError(f"{wrong} fits the schema and what it refers to")

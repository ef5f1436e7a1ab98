"""confluent-kafka's serializers, with references: sends three records of each type, and reads them as others do.

Usage: confluent.py HOST:PORT REGISTRY AVRO-TOPIC PROTOBUF-TOPIC JSON-TOPIC. Prints TYPE and the value, a line each.
"""
import json
import sys

from confluent_kafka import Consumer, Producer
from confluent_kafka.schema_registry import Schema, SchemaReference, SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.schema_registry.json_schema import JSONDeserializer, JSONSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer, ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from google.protobuf import descriptor_pb2, descriptor_pool, json_format, message_factory

bootstrap, url, *topics = sys.argv[1:]
client, other = (SchemaRegistryClient({"url": url}) for _ in range(2))


def schema(kind, base, text):
    client.register_schema(base[0], Schema(base[1], kind))
    return Schema(text, kind, [SchemaReference(base[0], base[0], 1)])


avro = schema("AVRO", ("Page", '{"type":"record","name":"Page","fields":[{"name":"path","type":"string"}]}'),
              '{"type":"record","name":"Visit","fields":[{"name":"id","type":"int"},{"name":"page","type":"Page"}]}')
jsons = schema("JSON", ("page.json", '{"type":"object","properties":{"path":{"type":"string"}},"additionalProperties":false}'),
               '{"type":"object","properties":{"id":{"type":"integer"},"page":{"$ref":"page.json"}},"additionalProperties":false}')

field = descriptor_pb2.FieldDescriptorProto
page = descriptor_pb2.FileDescriptorProto(name="visits/page.proto", package="visits", syntax="proto3")
page.message_type.add(name="Page").field.add(name="path", number=1, label=field.LABEL_OPTIONAL, type=field.TYPE_STRING)
visit = descriptor_pb2.FileDescriptorProto(name="visits/visit.proto", package="visits", syntax="proto3", dependency=[page.name])
visited = visit.message_type.add(name="Visit").field
visited.add(name="id", number=1, label=field.LABEL_OPTIONAL, type=field.TYPE_INT32)
visited.add(name="page", number=2, label=field.LABEL_OPTIONAL, type=field.TYPE_MESSAGE, type_name=".visits.Page")
for f in (page, visit):
    descriptor_pool.Default().AddSerializedFile(f.SerializeToString())
Visit = message_factory.GetMessageClass(descriptor_pool.Default().FindMessageTypeByName("visits.Visit"))

types = {
    "avro": (AvroSerializer(client, avro), AvroDeserializer(other)),
    "protobuf": (ProtobufSerializer(Visit, client), ProtobufDeserializer(Visit, schema_registry_client=other)),
    "json": (JSONSerializer(jsons, client), JSONDeserializer(None, schema_registry_client=other)),
}
for topic, (name, (serialize, deserialize)) in zip(topics, types.items(), strict=True):
    context = SerializationContext(topic, MessageField.VALUE)
    producer = Producer({"bootstrap.servers": bootstrap, "acks": "all"})
    for i in (1, 2, 3):
        value = {"id": i, "page": {"path": f"/{name}/{i}"}}
        producer.produce(topic, serialize(json_format.ParseDict(value, Visit()) if name == "protobuf" else value, context))
    producer.flush()
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": f"{topic}-confluent", "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    for _ in range(3):
        record = consumer.poll(60)
        assert record is not None and record.error() is None, record
        value = deserialize(record.value(), context)
        print(name, json.dumps(json_format.MessageToDict(value) if name == "protobuf" else value, separators=(",", ":")))
    consumer.close()

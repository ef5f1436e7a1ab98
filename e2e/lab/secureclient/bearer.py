"""Produces by SASL_PLAINTEXT with the token in a file, by librdkafka, which asks for another before the
token expires, until it has asked as often as it is told; or prints why it may not log in.

    bearer.py BOOTSTRAP TOKEN_FILE TOPIC TIMES
"""
import base64
import json
import sys
import time

from confluent_kafka import KafkaError, Producer

bootstrap, file, topic, times = sys.argv[1:]
asked, refused, failed = [], [], []


def token(_):
    with open(file) as f:
        text = f.read()
    payload = text.split(".")[1]
    claims = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
    asked.append(claims["exp"])
    return text, max(claims["exp"], time.time() + 60 * (claims["exp"] < time.time()))  # the server is to say that it has expired


def error(e):
    if e.code() == KafkaError._AUTHENTICATION:
        refused.append(e.str())


producer = Producer({"bootstrap.servers": bootstrap, "security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "OAUTHBEARER",
                     "oauth_cb": token, "error_cb": error})
sent = 0
while not refused:
    producer.produce(topic, f"python {sent}", on_delivery=lambda err, _: err and failed.append(err))
    sent += 1
    while len(producer) and not refused:
        producer.poll(0.1)
    if failed:
        sys.exit(f"not delivered: {failed}")
    if not refused and len(set(asked)) > int(times):
        print("ok")
        sys.exit()
print("refused:", *refused)

"""The examples of docs/sqs.md do what a reader expects, but for the endpoint, which is the one under test."""

import shlex
from pathlib import Path

import boto3
import pytest
from botocore import xform_name

from conftest import URL

PAGE = Path(__file__).resolve().parents[3] / "docs" / "sqs.md"
ENDPOINT = "http://127.0.0.1:9324"


def blocks():
    """Runs of lines that are indented by four spaces, without that."""
    found, block = [], []
    for line in PAGE.read_text().splitlines() + ["end"]:
        if line.startswith("    "):
            block.append(line[4:])
        elif block and line:
            found.append(block)
            block = []
    return found


@pytest.fixture
def clean(sqs):
    """Examples use one name, which must not be there before or after."""

    def delete():
        for url in sqs.list_queues(QueueNamePrefix="jobs").get("QueueUrls", []):
            sqs.delete_queue(QueueUrl=url)

    delete()
    yield
    delete()


def test_the_python_example_sends_and_receives(sqs, clean):
    examples = [block for block in blocks() if block[0] == "import boto3"]
    assert len(examples) == 1
    text = "\n".join(examples[0])
    assert ENDPOINT in text
    names = {}
    exec(text.replace(ENDPOINT, URL), names)
    assert names["received"]["Body"] == "hello"
    assert "Messages" not in sqs.receive_message(QueueUrl=names["url"], WaitTimeSeconds=0)


def test_commands_of_the_aws_cli_are_known_to_the_model_and_work(sqs, clean):
    """The command line is made from botocore's model: a command is an action, an option one of its members."""
    lines = [line for block in blocks() for line in block if line.startswith("aws ")]
    assert lines
    model = sqs.meta.service_model
    actions = {xform_name(name, "-"): name for name in model.operation_names}
    for line in lines:
        words = shlex.split(line, comments=True)
        assert words[:4] == ["aws", "--endpoint-url", ENDPOINT, "sqs"], line
        action = actions[words[4]]
        members = {xform_name(name, "-"): name for name in model.operation_model(action).input_shape.members}
        options = words[5:]
        given = {members[name.removeprefix("--")]: value for name, value in zip(options[::2], options[1::2])}
        assert len(given) * 2 == len(options), line
        client = boto3.client(
            "sqs", endpoint_url=URL, region_name="us-east-1",
            aws_access_key_id="any", aws_secret_access_key="any",
        )
        answer = getattr(client, xform_name(action))(**given)
        assert answer["ResponseMetadata"]["HTTPStatusCode"] == 200

"""The generated modules belong to the proto file, and the proto file is KEDA's contract."""

from importlib.resources import files
from pathlib import Path

from google.protobuf import descriptor, descriptor_pb2, descriptor_pool
from grpc_tools import protoc

from autoscaler.adapters.keda.proto import externalscaler_pb2 as pb
from autoscaler.adapters.keda.proto import externalscaler_pb2_grpc as pb_grpc

ROOT = Path(__file__).parents[3]
PROTO = "autoscaler/adapters/keda/proto/externalscaler.proto"

# KEDA's pkg/scalers/externalscaler/externalscaler.proto: field names and numbers of each message.
FIELDS = {
    "ScaledObjectRef": {"name": 1, "namespace": 2, "scalerMetadata": 3},
    "IsActiveResponse": {"result": 1},
    "GetMetricSpecResponse": {"metricSpecs": 1},
    "MetricSpec": {"metricName": 1, "targetSize": 2, "targetSizeFloat": 3},
    "GetMetricsRequest": {"scaledObjectRef": 1, "metricName": 2},
    "GetMetricsResponse": {"metricValues": 1},
    "MetricValue": {"metricName": 1, "metricValue": 2, "metricValueFloat": 3},
}
METHODS = {  # request, response, response is a stream
    "IsActive": ("ScaledObjectRef", "IsActiveResponse", False),
    "StreamIsActive": ("ScaledObjectRef", "IsActiveResponse", True),
    "GetMetricSpec": ("ScaledObjectRef", "GetMetricSpecResponse", False),
    "GetMetrics": ("GetMetricsRequest", "GetMetricsResponse", False),
    "StreamMetricSpec": ("ScaledObjectRef", "GetMetricSpecResponse", True),
}


def normal(file: descriptor.FileDescriptor) -> descriptor_pb2.FileDescriptorProto:
    copy = descriptor_pb2.FileDescriptorProto()
    file.CopyToProto(copy)
    for message in copy.message_type:
        for field in [*message.field, *(field for nested in message.nested_type for field in nested.field)]:
            field.ClearField("json_name")  # only a compiler's own output has it
    return copy


def generated() -> descriptor_pb2.FileDescriptorProto:
    return normal(pb.DESCRIPTOR)


def test_generated_code_belongs_to_the_proto_file(tmp_path: Path):
    compiled = tmp_path / "externalscaler.binpb"
    include = files("grpc_tools") / "_proto"
    arguments = [f"--proto_path={ROOT}", f"--proto_path={include}", f"--descriptor_set_out={compiled}", PROTO]
    assert protoc.main(["protoc", *arguments]) == 0
    (file,) = descriptor_pb2.FileDescriptorSet.FromString(compiled.read_bytes()).file
    pool = descriptor_pool.DescriptorPool()  # it fills in and leaves out the same things as for the generated code
    pool.AddSerializedFile(file.SerializeToString())
    assert normal(pool.FindFileByName(PROTO)) == generated()


def test_messages_have_kedas_fields_and_numbers():
    found = {
        message.name: {field.name: field.number for field in message.field} for message in generated().message_type
    }
    assert found == FIELDS


def test_fields_have_kedas_wire_types():
    kind = descriptor_pb2.FieldDescriptorProto
    for message, field, wire_type in [
        ("MetricSpec", "targetSize", kind.TYPE_INT64),
        ("MetricSpec", "targetSizeFloat", kind.TYPE_DOUBLE),
        ("MetricValue", "metricValue", kind.TYPE_INT64),
        ("MetricValue", "metricValueFloat", kind.TYPE_DOUBLE),
        ("IsActiveResponse", "result", kind.TYPE_BOOL),
    ]:
        (message_type,) = [m for m in generated().message_type if m.name == message]
        (found,) = [f for f in message_type.field if f.name == field]
        assert found.type == wire_type, field


def test_service_and_methods_have_kedas_names():
    (service,) = generated().service
    assert f"{generated().package}.{service.name}" == "externalscaler.ExternalScaler"
    found = {m.name: (m.input_type, m.output_type, m.server_streaming) for m in service.method}
    assert found == {n: (f".externalscaler.{i}", f".externalscaler.{o}", s) for n, (i, o, s) in METHODS.items()}
    assert not any(method.client_streaming for method in service.method)
    assert all(hasattr(pb_grpc.ExternalScalerServicer, name) for name in METHODS)

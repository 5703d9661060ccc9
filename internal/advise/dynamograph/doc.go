// Package dynamograph reads a DynamoGraphDeployment, which is the object of NVIDIA Dynamo's operator for a fleet.
//
// [Read] returns what Stator takes over, and a [Note] for each field that it does not. Both published versions are read:
//
//	              components            an engine's command line        its GPUs
//	v1alpha1      spec.services, a map  extraPodSpec.mainContainer      resources.limits.gpu
//	v1beta1       spec.components       podTemplate, container "main"   the container's resources.limits
//
// Fields that the API server or the operator writes are left out without a note, and so are fields that are empty, false or switched off by
// enabled: false.
//
// # Trust
//
// A file may come from anywhere. It is bounded in bytes, documents, components and depth, and must not have aliases. Texts from the file
// are in notes only quoted and cut.
package dynamograph

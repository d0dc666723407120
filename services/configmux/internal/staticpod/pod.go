package staticpod

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"sync"
	"unicode"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"
	podutil "k8s.io/kubernetes/pkg/api/pod"
	"k8s.io/kubernetes/pkg/apis/core"
	corev1 "k8s.io/kubernetes/pkg/apis/core/v1"
	"k8s.io/kubernetes/pkg/apis/core/validation"
	"k8s.io/kubernetes/pkg/capabilities"
	kjson "sigs.k8s.io/json"

	"github.com/quartet-node/quartet/internal/podset"
	"github.com/quartet-node/quartet/internal/privilege"
	"github.com/quartet-node/quartet/internal/redact"
)

// uidPattern matches a valid UID of a manifest, because it becomes a directory's name, a label in the runtime and a key
// of the stream of pods.
var uidPattern = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`^[A-Za-z0-9]([-A-Za-z0-9]{0,61}[A-Za-z0-9])?$`)
})

// pod decodes one pod.
func (d *decoder) pod(object map[string]any, where string) {
	// The status in the manifest is an observation of another pod and not part of the desired state.
	object = maps.Clone(object)
	delete(object, "status")
	forged := dropOwnAnnotations(object)
	canonical, err := json.Marshal(object)
	if err != nil {
		d.unnamed(where, fmt.Sprintf("cannot encode it: %s", err))
		return
	}
	named := d.nameOf(object)
	report := func(field, message string) {
		if named == "" {
			d.unnamed(join(where, field), message)
			return
		}
		d.problem(Problem{Pod: named, Field: join(where, field), Message: message})
	}

	pod := &v1.Pod{}
	strict, err := kjson.UnmarshalStrict(canonical, pod, kjson.DisallowDuplicateFields, kjson.DisallowUnknownFields)
	if err != nil {
		report(typeError(err))
		return
	}
	for _, e := range strict {
		report(strictError(e))
	}
	if len(strict) > 0 {
		return
	}
	if pod.Name == "" {
		report("metadata.name", "required: name the pod")
		return
	}
	if pod.UID != "" && !uidPattern().MatchString(string(pod.UID)) {
		report("metadata.uid", "must be at most 63 letters, digits and dashes, and begin and end with a letter or digit")
		return
	}
	// References and privileges are checked first and before defaulting, so that the reported reason is visible to the
	// manifest's author.
	errs := append(refuseReferences(pod, d.origin.Standalone), privilege.Check(pod, d.origin.Source, d.origin.Allowed)...)
	if len(errs) == 0 {
		d.applyDefaults(pod, canonical)
		errs = validate(pod, d.origin.Standalone)
	}
	for _, e := range errs {
		report(e.Field, e.ErrorBody())
	}
	if len(errs) > 0 {
		return
	}
	d.result.Pods = append(d.result.Pods, pod)
	for _, key := range forged {
		d.ignore(Problem{
			Pod: named, Field: join(where, field.NewPath("metadata", "annotations").Key(key).String()),
			Message: "only the node's agent sets this annotation: it is ignored, and the rest of the pod counts: remove it",
		})
	}
}

// nameOf returns the final "namespace/name" of a pod that may be invalid in other ways; empty if it has none.
func (d *decoder) nameOf(object map[string]any) string {
	metadata, _ := object["metadata"].(map[string]any)
	name, _ := metadata["name"].(string)
	if name == "" {
		return ""
	}
	namespace, isString := metadata["namespace"].(string)
	if namespace == "" {
		if !isString && metadata["namespace"] != nil {
			return ""
		}
		namespace = metav1.NamespaceDefault
	}
	return namespace + "/" + d.nodeSuffixed(name)
}

func (d *decoder) nodeSuffixed(name string) string {
	return name + "-" + strings.ToLower(d.origin.Node)
}

// applyDefaults sets the defaults of a static pod: the API's, and then those of the kubelet.
func (d *decoder) applyDefaults(pod *v1.Pod, canonical []byte) {
	pod.APIVersion, pod.Kind = "v1", "Pod"
	corev1.SetObjectDefaults_Pod(pod)
	if pod.UID == "" {
		pod.UID = d.uid(canonical)
	}
	pod.Name = d.nodeSuffixed(pod.Name)
	if pod.Namespace == "" {
		pod.Namespace = metav1.NamespaceDefault
	}
	pod.Spec.NodeName = d.origin.Node
	if pod.Annotations == nil {
		pod.Annotations = map[string]string{}
	}
	pod.Annotations[podset.AnnotationHash] = string(pod.UID)
	pod.Spec.Tolerations = tolerateNoExecute(pod.Spec.Tolerations)
	pod.Status = v1.PodStatus{Phase: v1.PodPending}
}

// uid computes the UID of a pod without one from the manifest's content, the node and the file. The content is in a
// canonical form before defaulting, so that neither a comment nor changed defaults of a newer version change the UID.
func (d *decoder) uid(canonical []byte) types.UID {
	h := sha256.New()
	// Writing to a hash does not fail.
	_, _ = fmt.Fprintf(h, "host:%q\nfile:%q\n%s", d.origin.Node, d.origin.Path, canonical)
	return types.UID(hex.EncodeToString(h.Sum(nil)[:16]))
}

// tolerateNoExecute adds the toleration that keeps a static pod on a node with NoExecute taints.
func tolerateNoExecute(tolerations []v1.Toleration) []v1.Toleration {
	always := v1.Toleration{Operator: v1.TolerationOpExists, Effect: v1.TaintEffectNoExecute}
	for i := range tolerations {
		if tolerations[i].MatchToleration(&always) {
			tolerations[i] = always
			return tolerations
		}
	}
	return append(tolerations, always)
}

// validate returns the validation errors of a defaulted pod. A pod of a node without an API server may refer to config
// maps, secrets and claims.
func validate(pod *v1.Pod, standalone bool) field.ErrorList {
	// The conversion shares memory with its input, so it gets its own copy.
	internal := &core.Pod{}
	if err := corev1.Convert_v1_Pod_To_core_Pod(pod.DeepCopy(), internal, nil); err != nil {
		return field.ErrorList{field.InternalError(nil, fmt.Errorf("cannot convert the pod: %w", err))}
	}
	// Package privilege decides about privileged containers. The library's validation forbids them until a global of it is
	// set; only the first call has an effect, so it is always called with the same value before the validation.
	capabilities.Setup(true, 0)
	options := podutil.GetValidationOptionsFromPodSpecAndMeta(&internal.Spec, nil, &internal.ObjectMeta, nil)
	errs := validation.ValidatePodCreate(internal, options)
	if len(errs) > 0 {
		return errs
	}
	// This complements refuseReferences: references of a newer API are refused here.
	if standalone {
		internal = withoutObjects(internal)
	}
	_, resource, err := podutil.HasAPIObjectReference(internal)
	switch {
	case err != nil:
		errs = append(errs, field.Forbidden(field.NewPath("spec"), err.Error()))
	case resource != "":
		errs = append(errs, field.Forbidden(field.NewPath("spec"), forbidden(resource)))
	}
	return errs
}

// typeError returns the field and the problem of a value of the wrong type.
func typeError(err error) (path, message string) {
	var wrong *json.UnmarshalTypeError
	if errors.As(err, &wrong) && wrong.Field != "" {
		return manifestPath(
				wrong.Field,
			), fmt.Sprintf(
				"must be %s, not %s",
				typeName(wrong.Type.Kind().String()),
				redact.JSONType(wrong.Value),
			)
	}
	return "", err.Error()
}

// manifestPath removes the names of embedded Go structs, which do not exist in manifests, from the path of a field.
func manifestPath(path string) string {
	parts := slices.DeleteFunc(strings.Split(path, "."), func(part string) bool {
		return part != "" && unicode.IsUpper(rune(part[0]))
	})
	return strings.Join(parts, ".")
}

// typeName returns the name of a Go kind in the words of a manifest.
func typeName(kind string) string {
	switch {
	case strings.HasPrefix(kind, "int"), strings.HasPrefix(kind, "uint"):
		return "a whole number"
	case strings.HasPrefix(kind, "float"):
		return "a number"
	case kind == "bool":
		return "true or false"
	case kind == "slice", kind == "array":
		return "a list"
	case kind == "struct", kind == "map", kind == "ptr":
		return "an object"
	default:
		return "a " + kind
	}
}

// strictError returns the field and the problem of a strict decoding error.
func strictError(err error) (path, message string) {
	var at kjson.FieldError
	if !errors.As(err, &at) {
		return "", err.Error()
	}
	if strings.HasPrefix(err.Error(), "unknown field") {
		return at.FieldPath(), "unknown field: check its spelling and its indentation"
	}
	return at.FieldPath(), err.Error()
}

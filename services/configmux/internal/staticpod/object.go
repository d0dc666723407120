package staticpod

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	kjson "sigs.k8s.io/json"

	"github.com/quartet-node/quartet/services/configmux/internal/apiobject"
)

// configObject takes one config map or secret.
func (d *decoder) configObject(kind apiobject.Kind, object map[string]any, where string) {
	key := keyOf(kind, object)
	report := func(path, message string) {
		if key.Name == "" {
			d.unnamed(join(where, path), message)
			return
		}
		d.problem(Problem{Object: key.String(), Field: join(where, path), Message: message})
	}
	if !d.origin.Standalone {
		report("kind", fmt.Sprintf("must be %s, not %q: this node has an API server, and takes config maps and secrets from there", d.accepted(), kind))
		return
	}
	if key.Name == "" {
		report("metadata", "name the "+string(kind)+", with texts as name and namespace")
		return
	}
	o := decodeObject(kind, object, report)
	if o == nil {
		return
	}
	errs := o.Prepare()
	for _, e := range errs {
		report(e.Field, e.ErrorBody())
	}
	if len(errs) == 0 {
		d.result.Objects = append(d.result.Objects, o)
	}
}

// keyOf finds which object it is that may be wrong in every other way; without a name when it has none.
func keyOf(kind apiobject.Kind, object map[string]any) apiobject.Key {
	metadata, _ := object["metadata"].(map[string]any)
	name, _ := metadata["name"].(string)
	namespace, isText := metadata["namespace"].(string)
	if !isText && metadata["namespace"] != nil {
		return apiobject.Key{Kind: kind}
	}
	if namespace == "" {
		namespace = metav1.NamespaceDefault
	}
	return apiobject.Key{Kind: kind, Namespace: namespace, Name: name}
}

// decodeObject makes an object of what a manifest says, or reports why it cannot; nil then. What it reports has nothing of
// the values.
func decodeObject(kind apiobject.Kind, object map[string]any, report func(path, message string)) *apiobject.Object {
	wrong := false
	refuse := func(path, message string) {
		wrong = true
		report(path, message)
	}
	o := &apiobject.Object{}
	var into any
	if kind == apiobject.Secret {
		o.Secret = &v1.Secret{}
		into = o.Secret
		checkValues(object, "data", true, refuse)
		checkValues(object, "stringData", false, refuse)
	} else {
		o.ConfigMap = &v1.ConfigMap{}
		into = o.ConfigMap
		checkValues(object, "data", false, refuse)
		checkValues(object, "binaryData", true, refuse)
	}
	if wrong {
		return nil
	}
	canonical, err := json.Marshal(object)
	if err != nil {
		report("", "cannot encode it")
		return nil
	}
	strict, err := kjson.UnmarshalStrict(canonical, into, kjson.DisallowDuplicateFields, kjson.DisallowUnknownFields)
	if err != nil {
		report(typeError(err))
		return nil
	}
	for _, e := range strict {
		refuse(strictError(e))
	}
	if wrong {
		return nil
	}
	return o
}

// checkValues reports what is no text, or no base64, in a field that has data by key. Its decoder would quote it.
func checkValues(object map[string]any, name string, encoded bool, refuse func(path, message string)) {
	values, isObject := object[name].(map[string]any)
	if !isObject {
		if object[name] != nil {
			refuse(name, "must be an object: keys, each with its value")
		}
		return
	}
	for _, key := range slices.Sorted(maps.Keys(values)) {
		path := field.NewPath(name).Key(key).String()
		text, isText := values[key].(string)
		switch {
		case values[key] == nil: // the API takes it for an empty one
		case !isText && encoded:
			refuse(path, "must be a string with base64")
		case !isText:
			refuse(path, "must be a string: put it in quotes")
		case encoded && !isBase64(text):
			refuse(path, "must be base64"+plainText(object))
		}
	}
}

// plainText says where what is not base64 may stand.
func plainText(object map[string]any) string {
	if kind, _ := object["kind"].(string); kind == string(apiobject.ConfigMap) {
		return ": put text under data"
	}
	return ": put text that is not encoded under stringData"
}

// isBase64 reports whether the API's decoder takes a text: it overlooks the ends of lines.
func isBase64(text string) bool {
	_, err := base64.StdEncoding.DecodeString(strings.NewReplacer("\r", "", "\n", "").Replace(text))
	return err == nil
}

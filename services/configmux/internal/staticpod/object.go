package staticpod

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	kjson "sigs.k8s.io/json"

	"github.com/quartet-node/quartet/services/configmux/internal/apiobject"
)

// configObject decodes one object that is not a pod.
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
		report(
			"kind",
			fmt.Sprintf(
				"must be %s, not %q: this node has an API server, and takes config maps, secrets, claims, storage classes and CSIDrivers from there",
				d.accepted(),
				kind,
			),
		)
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

// keyOf returns the key of an object that may be invalid in other ways; its name is empty if it has none.
func keyOf(kind apiobject.Kind, object map[string]any) apiobject.Key {
	metadata, _ := object["metadata"].(map[string]any)
	name, _ := metadata["name"].(string)
	namespace, isText := metadata["namespace"].(string)
	if !isText && metadata["namespace"] != nil {
		return apiobject.Key{Kind: kind}
	}
	return apiobject.Key{Kind: kind, Namespace: kind.Namespace(namespace), Name: name}
}

// decodeObject decodes an object of a manifest, or reports the problems and returns nil. The problems contain no
// values.
func decodeObject(kind apiobject.Kind, object map[string]any, report func(path, message string)) *apiobject.Object {
	wrong := false
	refuse := func(path, message string) {
		wrong = true
		report(path, message)
	}
	o := &apiobject.Object{}
	var into any
	switch kind {
	case apiobject.Secret:
		o.Secret = &v1.Secret{}
		into = o.Secret
		checkValues(object, "data", true, refuse)
		checkValues(object, "stringData", false, refuse)
	case apiobject.Claim:
		o.Claim = &v1.PersistentVolumeClaim{}
		into = o.Claim
	case apiobject.Class:
		o.Class = &storagev1.StorageClass{}
		into = o.Class
	case apiobject.Driver:
		o.Driver = &storagev1.CSIDriver{}
		into = o.Driver
	case apiobject.ConfigMap:
		o.ConfigMap = &v1.ConfigMap{}
		into = o.ConfigMap
		checkValues(object, "data", false, refuse)
		checkValues(object, "binaryData", true, refuse)
	case apiobject.Volume, apiobject.Service, apiobject.Services: // no manifest has them
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

// checkValues reports values that are not text, or not base64, in a field with data. The decoder's error would quote
// them.
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
		case values[key] == nil: // the API treats it as empty
		case !isText && encoded:
			refuse(path, "must be a string with base64")
		case !isText:
			refuse(path, "must be a string: put it in quotes")
		case encoded && !isBase64(text):
			refuse(path, "must be base64"+plainText(object))
		}
	}
}

// plainText returns the advice for a value that is not base64.
func plainText(object map[string]any) string {
	if kind, _ := object["kind"].(string); kind == string(apiobject.ConfigMap) {
		return ": put text under data"
	}
	return ": put text that is not encoded under stringData"
}

// isBase64 reports whether the API's decoder accepts a text; it ignores line ends.
func isBase64(text string) bool {
	_, err := base64.StdEncoding.DecodeString(strings.NewReplacer("\r", "", "\n", "").Replace(text))
	return err == nil
}

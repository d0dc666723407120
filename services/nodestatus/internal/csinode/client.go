package csinode

import (
	"context"
	"encoding/json"

	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
)

// The names of the resources in a URL.
const csiNodes, nodes = "csinodes", "nodes"

// api is the client of the API server, reduced to the needed calls. Its errors are those of the API server or of
// client-go.
type api struct {
	core, storage rest.Interface
	name          string
}

func (a api) get(ctx context.Context) (*storagev1.CSINode, error) {
	return one(ctx, a.storage.Get().Resource(csiNodes).Name(a.name))
}

func (a api) create(ctx context.Context, object *storagev1.CSINode) (*storagev1.CSINode, error) {
	return one(ctx, a.storage.Post().Resource(csiNodes).Body(object))
}

// update replaces the CSINode, unless another client has changed it.
func (a api) update(ctx context.Context, object *storagev1.CSINode) (*storagev1.CSINode, error) {
	return one(ctx, a.storage.Put().Resource(csiNodes).Name(a.name).Body(object))
}

// updateStatus replaces the status of the CSINode, unless another client has changed the object.
func (a api) updateStatus(ctx context.Context, object *storagev1.CSINode) error {
	_, err := one(ctx, a.storage.Put().Resource(csiNodes).Name(a.name).SubResource("status").Body(object))
	return err
}

// remove deletes the CSINode with a UID.
func (a api) remove(ctx context.Context, uid types.UID) error {
	options := &metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &uid}}
	return a.storage.Delete().Resource(csiNodes).Name(a.name).Body(options).Do(ctx).Error()
}

func one(ctx context.Context, request *rest.Request) (*storagev1.CSINode, error) {
	object := new(storagev1.CSINode)
	if err := request.Do(ctx).Into(object); err != nil {
		return nil, err
	}
	return object, nil
}

// mark changes the metadata of the Node.
func (a api) mark(ctx context.Context, change metadata) error {
	patch := map[string]any{}
	if len(change.labels) > 0 {
		patch["labels"] = change.labels
	}
	if change.annotation != nil {
		var value any // null removes it
		if *change.annotation != "" {
			value = *change.annotation
		}
		patch["annotations"] = map[string]any{annotationNodeIDs: value}
	}
	body, err := json.Marshal(map[string]any{"metadata": patch})
	if err != nil {
		return err
	}
	return a.core.Patch(types.MergePatchType).Resource(nodes).Name(a.name).Body(body).Do(ctx).Error()
}

"""Studies: one trace against compiled replicas while a scaler decides, and the scalers. It knows no network."""
